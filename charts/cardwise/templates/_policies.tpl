{{- /*
The policies of the values: which one places whom, as settings have it; the files of a user's own, in a ConfigMap, and
mounted from it. Of the scheduler, and of all that answers as it does.
*/}}
{{- define "cardwise.policyToml" -}}
[policy]
{{- range $class, $policy := .Values.scheduler.policy }}
{{ $class }} = {{ hasKey $.Values.scheduler.policyFiles $policy | ternary (printf "/etc/cardwise/policies/%s.toml" $policy) $policy | quote }}
{{- end }}
{{- end }}

{{- define "cardwise.policyFiles" }}
  {{- range $name, $content := .Values.scheduler.policyFiles }}
  policy.{{ $name }}.toml: |
    {{- $content | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "cardwise.policyMounts" }}
            {{- range $name, $_ := .Values.scheduler.policyFiles }}
            - {name: config, mountPath: /etc/cardwise/policies/{{ $name }}.toml, subPath: policy.{{ $name }}.toml, readOnly: true}
            {{- end }}
{{- end }}
