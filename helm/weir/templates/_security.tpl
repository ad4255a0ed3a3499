{{/*
"true" when the admission policy is made. It is cluster-wide, so `auto` waits for the readiness gate: only a cluster
admin may hand out the right to patch pods/status that comes with it, and everything else is left to an admin of the
namespace.
*/}}
{{- define "weir.admissionPolicy" -}}
{{- $wanted := toString .Values.sidecar.admissionPolicy -}}
{{- $there := and (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") -}}
{{- $auto := and (eq $wanted "auto") .Values.sidecar.readinessGate.enabled $there -}}
{{- if and .Values.sidecar.enabled .Values.rbac.create (or $auto (eq $wanted "true")) -}}true{{- end -}}
{{- end -}}
