{{/* Name of all objects; 45 characters leave room for suffixes within the 63 of a label. */}}
{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.headlessName" -}}
{{- include "weir.fullname" . }}-headless
{{- end -}}

{{/* What selects the serving pods; it never changes in the life of a release. */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{/* Labels of every object. */}}
{{- define "weir.labels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/*
metadata of an object. Argument: dict root, name; optional namespace ("-": cluster-wide), component, labels, annotations.
The chart's own labels win over those of the values: selectors depend on them.
*/}}
{{- define "weir.metadata" -}}
name: {{ .name }}
{{- if ne (.namespace | default "") "-" }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels:
  {{- $component := ternary (dict "app.kubernetes.io/component" .component) dict (not (empty .component)) }}
  {{- merge (dict) $component (include "weir.labels" .root | fromYaml) (.labels | default dict) (.root.Values.commonLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "weir.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Image reference. Argument: dict image, root. */}}
{{- define "weir.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "weir.tlsSecretName" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "weir.fullname" .)) -}}
{{- end -}}

{{- define "weir.clientCaSecretName" -}}
{{- .Values.tls.clientAuth.caSecretName | default (include "weir.tlsSecretName" .) -}}
{{- end -}}

{{/* "true" when health has a port of its own, because the kubelet's probes speak plain text. */}}
{{- define "weir.separateHealth" -}}
{{- if .Values.tls.enabled -}}true{{- end -}}
{{- end -}}
