{{/*
Name of all objects; 45 characters leave room for suffixes within the 63 of a label. Services need a letter first and
have no dots; releases may be called 123 or a.b.
*/}}
{{- define "weir.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $release := replace "." "-" .Release.Name -}}
{{- $name = ternary $release (printf "%s-%s" $release $chart) (contains $chart $release) -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
{{- $name = printf "%s-%s" .Chart.Name $release -}}
{{- end -}}
{{- end -}}
{{- $name | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.headlessName" -}}
{{- include "weir.fullname" . }}-headless
{{- end -}}

{{/* What tells this release's objects from all others. Argument: dict root, component. */}}
{{- define "weir.componentLabels" -}}
{{- $labels := dict "app.kubernetes.io/name" (.root.Values.nameOverride | default .root.Chart.Name | trunc 63 | trimSuffix "-") "app.kubernetes.io/instance" .root.Release.Name -}}
{{- with .component -}}
{{- $_ := set $labels "app.kubernetes.io/component" . -}}
{{- end -}}
{{- toYaml $labels -}}
{{- end -}}

{{/* What selects the serving pods; it never changes in the life of a release. */}}
{{- define "weir.selectorLabels" -}}
{{- include "weir.componentLabels" (dict "root" . "component" "server") -}}
{{- end -}}

{{/*
metadata of an object. Argument: dict root, name; optional namespace ("-": cluster-wide), component, labels, annotations
(both already strings). The chart's own labels win over those of the values: selectors depend on them.
*/}}
{{- define "weir.metadata" -}}
{{- $own := include "weir.componentLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $labels := include "weir.strings" (dict "values" .root.Values.commonLabels "at" "commonLabels") | fromYaml -}}
{{- $annotations := include "weir.strings" (dict "values" .root.Values.commonAnnotations "at" "commonAnnotations") | fromYaml -}}
name: {{ .name | quote }}
{{- if ne (.namespace | default "") "-" }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- merge $own (.labels | default dict) $labels | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "weir.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Image reference. Argument: dict image, root. */}}
{{- define "weir.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest | quote -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) | quote -}}
{{- end -}}
{{- end -}}

{{- define "weir.tlsSecretName" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "weir.fullname" .)) -}}
{{- end -}}

{{- define "weir.clientCaSecretName" -}}
{{- .Values.tls.clientAuth.caSecretName | default (include "weir.tlsSecretName" .) -}}
{{- end -}}
