{{- define "dlspawner.labels" -}}
{app.kubernetes.io/name: {{ . }}, app.kubernetes.io/part-of: dlspawner}
{{- end }}

{{- /* hub.baseUrl without its last slash: everything is below it, the Manager as well. */}}
{{- define "dlspawner.base" -}}
{{ .Values.jupyterhub.hub.baseUrl | trimSuffix "/" }}
{{- end }}

{{- /* The namespaces of jobs: a second one, which enforces nothing, where special permissions are switched on. */}}
{{- define "dlspawner.namespaces" -}}
{{- $jobs := .Values.jupyterhub.custom.namespace -}}
{{ $jobs }}{{ if .Values.jupyterhub.custom.cluster.special_permissions }} {{ $jobs }}-special{{ end }}
{{- end }}

{{- /* Labels of zero-to-jupyterhub's own pods. */}}
{{- define "dlspawner.z2jh" -}}
{app.kubernetes.io/component: {{ index . 1 }}, app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}}
{{- end }}

{{- define "dlspawner.pod" -}}
priorityClassName: dlspawner-product
automountServiceAccountToken: true
enableServiceLinks: false
{{- $made := dig "imagePullSecret" "create" false .Values.jupyterhub | ternary (list "image-pull-secret") list }}
{{- with concat $made .Values.jupyterhub.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ kindIs "string" . | ternary (dict "name" .) . | toJson }}
  {{- end }}
{{- end }}
{{- with .Values.jupyterhub.custom.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.jupyterhub.custom.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "dlspawner.restricted" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "dlspawner.env" -}}
{{- range $name, $value := .Values.jupyterhub.custom.extraEnv }}
- {{ kindIs "string" $value | ternary (dict "value" $value) $value | merge (dict "name" $name) | toJson }}
{{- end }}
{{- end }}

{{- define "dlspawner.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
    - ipBlock: {cidr: 169.254.20.10/32}
{{- end }}
