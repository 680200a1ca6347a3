#!/usr/bin/env bash
# Lints the chart, renders it with few and with all of its values, and holds k8s/install.yaml against it.
# Usage: k8s/chart/check.sh [HELM [write]]     With `write`, k8s/install.yaml is written anew.
set -euo pipefail
helm=${1:-helm}
chart=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$helm" lint --strict --quiet "$chart"
all=(
  --set relay.enabled=true --set 'relay.externalAddresses={/dns4/relay.example/tcp/4480}'
  --set monitoring.serviceMonitor=true --set monitoring.rules=true
  --set 'orchestrator.namespaces={team-a,team-b}' --set 'mesh.peers={/dns4/relay.example/tcp/4480/p2p/12D3}'
  --set mesh.id="$(printf 'ab%.0s' {1..32})" --set mesh.orchestrator="12D3KooW$(printf 'a%.0s' {1..44})" --set replicaDefaults.registryMirror=mirror.example/
)
# For who has no Helm: without proxies, which need a mesh.
plain() {
  echo "# What k8s/chart makes with its defaults and no proxies, for namespace dunlin-system:"
  echo "#   kubectl create namespace dunlin-system && kubectl apply --server-side -f k8s/install.yaml"
  "$helm" template dunlin "$chart" --namespace dunlin-system --set proxy.enabled=false \
    --set 'orchestrator.namespaces={default}'
}
if [ "${2:-}" = write ]; then plain >"$chart/../install.yaml"; fi
if ! diff -u "$chart/../install.yaml" <(plain); then
  echo "k8s/install.yaml is not what the chart makes; write it anew with: k8s/chart/check.sh HELM write" >&2
  exit 1
fi
"$helm" template dunlin "$chart" >/dev/null
one=$("$helm" template dunlin "$chart" --set proxy.enabled=false --set crds.install=false --set orchestrator.watchNamespace=one)
# One that looks after one namespace watches there, and reads only nodes, pods, models and runtimes elsewhere.
for kind in playgrounds configmaps controllerrevisions networkpolicies poddisruptionbudgets; do
  [ "$(grep -c "resources: \[$kind\], verbs: .*list, watch" <<<"$one")" = 1 ] || { echo "the chart's roles for one namespace: $kind" >&2; exit 1; }
done
rendered=$("$helm" template dunlin "$chart" "${all[@]}")

refused() {
  if "$helm" template dunlin "$chart" "$@" >/dev/null 2>&1; then
    echo "the chart takes $*" >&2
    exit 1
  fi
}
refused --set unknown=1
refused --set mesh.id=short
refused --set mesh.id="$(printf 'ab%.0s' {1..32})"
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
