{{- define "cardwise.labels" -}}
{{ include "cardwise.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Of one component alone: no workload may select another's pods. */}}
{{- define "cardwise.selector" -}}
app.kubernetes.io/name: cardwise
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "cardwise.image" -}}
{{ required "image.repository: no image is published yet; build one and say where it is (docs: howto/install)" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* v1.33.4-gke.1 and v1.33.4-eks-1 are v1.33.4 in the registry. */}}
{{- define "cardwise.kubeSchedulerImage" -}}
{{ .Values.kubeScheduler.image.repository }}:{{ .Values.kubeScheduler.image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) }}
{{- end }}

{{- define "cardwise.schedulerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:cardwise-scheduler
{{- end }}

{{- define "cardwise.controllerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:cardwise-controller
{{- end }}

{{- define "cardwise.agentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:cardwise-agent
{{- end }}

{{- /*
CEL: the node that the token of an agent's pod was made on, as a list of one, which the API server has from the token
itself. Empty for every other token of the account.
*/}}
{{- define "cardwise.agentNode" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([])
{{- end }}

{{- /* The names under which the servers are reached, as YAML list. */}}
{{- define "cardwise.hosts" -}}
{{- range $service := list "cardwise-extender" "cardwise-webhook" }}
- {{ $service }}.{{ $.Release.Namespace }}.svc
- {{ $service }}.{{ $.Release.Namespace }}.svc.cluster.local
{{- end }}
{{- end }}

{{- /*
The self-signed CA, the servers' certificate and kube-scheduler's, base64, as YAML: those of the cluster if it has them, else new ones. Made once per
rendering, for every template that needs them must get the same ones.
*/}}
{{- define "cardwise.tls" -}}
{{- if not (hasKey .Values "madeTls") }}
{{- $kept := (lookup "v1" "Secret" .Release.Namespace "cardwise-tls").data | default dict }}
{{- $client := (lookup "v1" "Secret" .Release.Namespace "cardwise-client-tls").data | default dict }}
{{- $complete := and (hasKey $kept "ca.crt") (hasKey $kept "tls.crt") (hasKey $kept "tls.key") (hasKey $client "tls.key") }}
{{- if $complete }}
{{- $_ := set $kept "client.crt" (index $client "tls.crt") }}
{{- $_ := set $kept "client.key" (index $client "tls.key") }}
{{- else }}
{{- $hosts := include "cardwise.hosts" . | fromYamlArray }}
{{- $ca := genCA "cardwise" (int .Values.tls.days) }}
{{- $cert := genSignedCert (first $hosts) nil $hosts (int .Values.tls.days) $ca }}
{{- $user := genSignedCert "cardwise-kube-scheduler" nil nil (int .Values.tls.days) $ca }}
{{- $kept = dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($cert.Cert | b64enc) "tls.key" ($cert.Key | b64enc) }}
{{- $_ := set $kept "client.crt" ($user.Cert | b64enc) }}
{{- $_ := set $kept "client.key" ($user.Key | b64enc) }}
{{- end }}
{{- $_ := set .Values "madeTls" (pick $kept "ca.crt" "tls.crt" "tls.key" "client.crt" "client.key") }}
{{- end }}
{{- toYaml .Values.madeTls }}
{{- end }}

{{- define "cardwise.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cardwise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Soft: a cluster of one node gets all replicas too. */}}
{{- define "cardwise.antiAffinity" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "cardwise.selector" . | nindent 12 }}
{{- end }}

{{- /*
CEL on a pod. The names that NVIDIA's device plugin itself advertises, nvidia.com/gpu and gpu.shared, are whole cards;
all others that begin with nvidia.com/gpu are asks for slices, or such an ask misspelt. MIG instances and what other
plugins of NVIDIA offer are none of ours.
*/}}
{{- define "cardwise.asksForSlice" -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
[c.?resources.?limits.orValue({}), c.?resources.?requests.orValue({})].exists(amounts, amounts.exists(k,
k.startsWith('cardwise.dev/') ||
(k.startsWith('nvidia.com/gpu') && !(k in ['nvidia.com/gpu', 'nvidia.com/gpu.shared'])))))
|| object.metadata.?annotations.orValue({}).exists(k,
k.startsWith('nvidia.com/gpu') || k.startsWith('cardwise.dev/'))
|| (object.spec.?schedulerName.orValue('') == 'cardwise' && ({{ include "cardwise.asksForWholeCards" . }}))
{{- end }}

{{- define "cardwise.asksForWholeCards" -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
[c.?resources.?limits.orValue({}), c.?resources.?requests.orValue({})].exists(amounts, amounts.exists(k,
k in ['nvidia.com/gpu', 'nvidia.com/gpu.shared'])))
{{- end }}
