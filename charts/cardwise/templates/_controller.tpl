{{- /* The controller's settings. Its policies are the scheduler's: it asks what would fit once others have gone. */}}
{{- define "cardwise.controllerToml" -}}
namespace = {{ .Release.Namespace | quote }}
lease = "cardwise-controller"
port = 10262

{{ include "cardwise.policyToml" . }}
{{- range $table, $keys := .Values.controller.settings }}

[{{ $table }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- if .Values.controller.quotaFile }}

[quota]
file = "/etc/cardwise/quota.toml"
{{- end }}
{{- end }}

{{- /* Whether a loop runs, as "true" or "". */}}
{{- define "cardwise.controllerRuns" -}}
{{- $told := get .root.Values.controller.settings .loop | default dict }}
{{- if ne (toString (get $told "enabled")) "false" }}true{{ end }}
{{- end }}
