{{/* A native sidecar: starts before the engine, ends after it; its preStop runs when the pod starts to terminate. */}}
{{- define "weir.sidecarContainer" -}}
{{- $side := .Values.sidecar -}}
{{- $port := (include "weir.ports" . | fromYaml).sidecar | int -}}
- name: sidecar
  image: {{ include "weir.image" (dict "image" $side.image "root" .) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - sidecar
    - --admin-address=unix:/run/weir/admin.sock
    - --port={{ $port }}
    - --{{ if not (include "weir.deletionCost" .) }}no-{{ end }}deletion-cost
    {{- if $side.readinessGate.enabled }}
    - --readiness-gate
    - --gate-max-wait={{ toJson $side.readinessGate.maxWaitSeconds }}
    {{- end }}
    - --pre-stop-delay={{ int64 .Values.termination.preStopSeconds }}
    - --drain-timeout={{ int64 .Values.termination.drainSeconds }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: POD_UID
      valueFrom: {fieldRef: {fieldPath: metadata.uid}}
    {{- with $side.extraEnv }}
    {{- include "weir.plainYaml" (dict "it" . "at" "sidecar.extraEnv") | nindent 4 }}
    {{- end }}
  ports:
    - {name: sidecar, containerPort: {{ $port }}, protocol: TCP}
  startupProbe:
    httpGet: {path: /healthz, port: sidecar}
    periodSeconds: 1
    timeoutSeconds: 3
    failureThreshold: 60
  livenessProbe:
    httpGet: {path: /healthz, port: sidecar}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  lifecycle:
    preStop:
      # A signal, so that no port of the pod can start a drain. PID 1 ignores it until it has a handler.
      exec: {command: [sh, -c, kill -USR1 1]}
  {{- with $side.resources }}
  resources:
    {{- include "weir.plainYaml" (dict "it" . "at" "sidecar.resources") | nindent 4 }}
  {{- end }}
  {{- with include "weir.containerSecurity" . }}
  {{- . | nindent 2 }}
  {{- end }}
  volumeMounts:
    - {name: run, mountPath: /run/weir}
    {{- if include "weir.usesApi" . }}
    - {name: api-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- end }}
    - {name: tmp, mountPath: /tmp, subPath: sidecar}
{{- end -}}
