{{- /* A value as TOML has it, whole on one line: maps become inline tables. Strings and numbers are as in JSON. */}}
{{- define "cardwise.toml" -}}
{{- if kindIs "map" . -}}
{ {{- $root := . }}{{ $begun := false }}
{{- range $key := keys . | sortAlpha }}
{{- $value := index $root $key }}
{{- if not (kindIs "invalid" $value) }}
{{- if $begun }},{{ end }} {{ toJson $key }} = {{ include "cardwise.toml" $value }}
{{- $begun = true }}
{{- end }}
{{- end }} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $value := . }}{{ if $i }}, {{ end }}{{ include "cardwise.toml" $value }}{{ end }}]
{{- else -}}
{{ toJson . }}
{{- end }}
{{- end }}

{{- /* A gateway's values over those of all gateways, as YAML. */}}
{{- define "cardwise.gateway" -}}
{{- $gateway := mergeOverwrite (deepCopy .root.Values.gatewayDefaults) (deepCopy (index .root.Values.gateways .name)) }}
{{- $settings := $gateway.settings }}
{{- if not (or $settings.services $settings.kubernetes) }}
{{- fail (printf "gateways.%s.settings: write services, or kubernetes for Services that opt in (docs: howto/gateway)" .name) }}
{{- end }}
{{- if and $settings.kubernetes (not $settings.kubernetes.gateway) }}
{{- $_ := set $settings.kubernetes "gateway" .name }}
{{- end }}
{{- toYaml $gateway }}
{{- end }}

{{- /* The settings file of a gateway. The ports are the chart's. */}}
{{- define "cardwise.gatewayToml" -}}
port = 8080
admin-port = 9090
{{- range $key, $value := omit . "services" }}
{{ $key }} = {{ include "cardwise.toml" $value }}
{{- end }}
{{- range .services }}

[[services]]
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "cardwise.toml" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
Which namespaces a gateway reads, as YAML: open, those where Services may opt in; named, the others whose Services the
settings name; everywhere, true for all.
*/}}
{{- define "cardwise.gatewayReads" -}}
{{- $open := (.kubernetes | default dict).namespaces | default list }}
{{- $named := list }}
{{- range .services }}
{{- if .kubernetes }}
{{- $named = append $named .kubernetes.namespace }}
{{- end }}
{{- end }}
everywhere: {{ has "*" $open }}
open: {{ has "*" $open | ternary list (uniq $open | sortAlpha) | toJson }}
named: {{ has "*" $open | ternary list (without (uniq $named | sortAlpha) "" | toStrings) | toJson }}
{{- end }}
