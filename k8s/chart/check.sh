#!/usr/bin/env bash
# Lints the chart and renders it with few and with all of its values. Usage: k8s/chart/check.sh [HELM]
set -euo pipefail
helm=${1:-helm}
chart=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$helm" lint --strict --quiet "$chart"
all=(
  --set relay.enabled=true --set 'relay.externalAddresses={/dns4/relay.example/tcp/4480}'
  --set monitoring.serviceMonitor=true --set monitoring.rules=true
  --set 'orchestrator.namespaces={team-a,team-b}' --set 'mesh.peers={/dns4/relay.example/tcp/4480/p2p/12D3}'
  --set mesh.id="$(printf 'ab%.0s' {1..32})" --set replicaDefaults.registryMirror=mirror.example/
)
"$helm" template dunlin "$chart" >/dev/null
"$helm" template dunlin "$chart" --set proxy.enabled=false --set crds.install=false --set orchestrator.watchNamespace=one >/dev/null
rendered=$("$helm" template dunlin "$chart" "${all[@]}")

refused() {
  if "$helm" template dunlin "$chart" "$@" >/dev/null 2>&1; then
    echo "the chart takes $*" >&2
    exit 1
  fi
}
refused --set unknown=1
refused --set mesh.id=short
refused --set relay.enabled=true
refused --set proxy.replicas=0

# It never asks for Secrets, and no right is a star.
if grep -nE 'resources: .*secrets|verbs: .*\*|resources: .*\*' <<<"$rendered"; then
  echo "the chart asks for more than it needs" >&2
  exit 1
fi
for kind in CustomResourceDefinition BackendRuntime Deployment StatefulSet PodDisruptionBudget NetworkPolicy ServiceMonitor PrometheusRule; do
  grep -q "^kind: $kind$" <<<"$rendered" || { echo "the chart lacks a $kind" >&2; exit 1; }
done
echo "chart: well"
