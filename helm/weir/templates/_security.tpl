{{/* "true" when the sidecar keeps something on its pod: without that it asks nothing of the API server. */}}
{{- define "weir.usesApi" -}}
{{- $side := .Values.sidecar -}}
{{- if and $side.enabled (or $side.readinessGate.enabled (include "weir.deletionCost" .)) -}}true{{- end -}}
{{- end -}}

{{/* "true" when the deletion cost is kept: only a ReplicaSet reads it. */}}
{{- define "weir.deletionCost" -}}
{{- if and .Values.sidecar.enabled .Values.sidecar.deletionCost (eq .Values.kind "Deployment") -}}true{{- end -}}
{{- end -}}

{{/*
"true" when the admission policy is made. It is cluster-wide, so `auto` waits for the readiness gate: only a cluster
admin may hand out the right to patch pods/status that comes with it, and everything else is left to an admin of the
namespace. Without an API server (`helm template`) kinds are not known, only the version.
*/}}
{{- define "weir.admissionPolicy" -}}
{{- $wanted := toString .Values.sidecar.admissionPolicy -}}
{{- $kinds := .Capabilities.APIVersions.Has "apps/v1/Deployment" -}}
{{- $there := and (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) (or (not $kinds) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy")) -}}
{{- $auto := and (eq $wanted "auto") .Values.sidecar.readinessGate.enabled $there -}}
{{- if and (include "weir.usesApi" .) .Values.rbac.create (or $auto (eq $wanted "true")) -}}true{{- end -}}
{{- end -}}
