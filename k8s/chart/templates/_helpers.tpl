{{- define "dunlin.name" -}}{{ printf "%s" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}
{{- define "dunlin.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- define "dunlin.labels" -}}
app.kubernetes.io/name: dunlin
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- /* Takes a list: the root, and the part's name. */ -}}
{{- define "dunlin.selector" -}}
app.kubernetes.io/name: dunlin
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}
{{- define "dunlin.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}
{{- define "dunlin.pod-security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: { type: RuntimeDefault }
{{- end }}
{{- /* Where the orchestrator that leads is reached: the addresses of all, of which only its own answers. */ -}}
{{- define "dunlin.orchestrator" -}}
/dns4/{{ include "dunlin.name" . }}-orchestrator.{{ .Release.Namespace }}.svc.{{ .Values.orchestrator.clusterDomain }}/tcp/4480
{{- end }}
{{- /* How a proxy or relay joins: its ServiceAccount's token says what it is. */ -}}
{{- define "dunlin.join-env" -}}
{{- if .Values.mesh.id }}
- { name: DUNLIN_MESH, value: {{ .Values.mesh.id }} }
- { name: DUNLIN_TOKEN_FILE, value: /var/run/secrets/dunlin/token }
- { name: DUNLIN_ORCHESTRATOR, value: {{ include "dunlin.orchestrator" . }}/p2p/{{ required "mesh.orchestrator is empty: the orchestrator's peer id, which `dunlin mesh secret` says" .Values.mesh.orchestrator }} }
{{- end }}
{{- end }}
{{- define "dunlin.join-mount" -}}
{{- if .Values.mesh.id }}
- { name: token, mountPath: /var/run/secrets/dunlin, readOnly: true }
{{- end }}
{{- end }}
{{- define "dunlin.join-volumes" -}}
{{- if .Values.mesh.id }}
volumes:
  - name: token
    projected:
      sources:
        - serviceAccountToken: { path: token, audience: dunlin.dev/{{ .Values.mesh.id }}, expirationSeconds: 3600 }
{{- end }}
{{- end }}
