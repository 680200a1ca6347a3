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
{{- /* Joins the mesh once: the volume remembers. Takes a list: the root, and the part's values. */ -}}
{{- define "dunlin.join" -}}
- name: join
  image: {{ include "dunlin.image" (index . 0) }}
  imagePullPolicy: {{ (index . 0).Values.image.pullPolicy }}
  command: [sh, -c, 'test -e /state/certificate || dunlin join "$DUNLIN_INVITATION"']
  env:
    - { name: DUNLIN_HOME, value: /state }
    - { name: DUNLIN_NAME, valueFrom: { fieldRef: { fieldPath: metadata.name } } }
    - { name: DUNLIN_INVITATION, valueFrom: { secretKeyRef: { name: {{ (index . 1).joinSecret }}, key: token } } }
  volumeMounts:
    - { name: state, mountPath: /state }
  securityContext: {{- include "dunlin.container-security" (index . 0) | nindent 4 }}
{{- end }}
