{{- define "jupyterhub.labels" -}}
{app.kubernetes.io/name: jupyterhub, app.kubernetes.io/component: {{ index . 1 }}, app.kubernetes.io/instance: {{ (index . 0).Release.Name }}}
{{- end }}

{{- /* Made once, and kept by an upgrade. */}}
{{- define "jupyterhub.kept" -}}
{{ dig "data" (index . 1) "" (lookup "v1" "Secret" (index . 0).Release.Namespace "hub") | b64dec | default (randAlphaNum 64 | sha256sum) }}
{{- end }}
