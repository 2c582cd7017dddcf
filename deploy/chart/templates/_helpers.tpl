{{- define "autoreg.labels" -}}
app.kubernetes.io/name: autoreg
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- define "autoreg.selector" -}}
app.kubernetes.io/name: autoreg
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
