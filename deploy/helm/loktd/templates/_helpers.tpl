{{- define "loktd.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "loktd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "loktd.meta" -}}
name: {{ include "loktd.name" . }}
labels:
  {{- include "loktd.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* settings, with what the daemon would not start without, and the names that the service has. */}}
{{- define "loktd.settings" -}}
{{- $name := include "loktd.name" . }}
{{- $service := printf "%s.%s.svc" $name .Release.Namespace }}
{{- $hosts := printf "%s %s.%s %s %s.cluster.local %s" $name $name .Release.Namespace $service $service (get .Values.settings "LOKTD_HOSTS") | trim }}
{{- $jobs := ternary (dict "LOKTD_JOBS_STORE" "none") dict (eq .Values.store.kind "etcd") }}
{{- mergeOverwrite $jobs .Values.settings (dict "LOKTD_HOSTS" $hosts) | toYaml }}
{{- end }}

{{- define "loktd.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "loktd.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # its variables, LOKTD_PORT of a service loktd, are no settings
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "loktd.mounts" -}}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/lokt/tls, readOnly: true}
{{- end }}
{{- if .Values.tokens.secret }}
- {name: tokens, mountPath: /etc/lokt/tokens, readOnly: true}
{{- end }}
{{- end }}

{{- define "loktd.volumes" -}}
{{- if .Values.tls.secret }}
- {name: tls, secret: {secretName: {{ .Values.tls.secret }}}}
{{- end }}
{{- if .Values.tokens.secret }}
- {name: tokens, secret: {secretName: {{ .Values.tokens.secret }}}}
{{- end }}
{{- end }}
