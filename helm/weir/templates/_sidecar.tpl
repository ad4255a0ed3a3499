{{/* A native sidecar: starts before the engine, ends after it; its preStop runs when the pod starts to terminate. */}}
{{- define "weir.sidecarContainer" -}}
{{- $side := .Values.sidecar -}}
- name: sidecar
  image: {{ include "weir.image" (dict "image" $side.image "root" .) }}
  imagePullPolicy: {{ $side.image.pullPolicy }}
  restartPolicy: Always
  args:
    - sidecar
    - --admin-address=unix:/run/weir/admin.sock
    - --port={{ $side.port }}
    - --log-level={{ $side.logLevel }}
    {{- $cost := and $side.deletionCost.enabled (eq .Values.kind "Deployment") }}
    - --{{ if not $cost }}no-{{ end }}deletion-cost
    {{- if $cost }}
    - --deletion-cost-interval={{ $side.deletionCost.minIntervalSeconds }}
    {{- end }}
    - --{{ if not $side.kvLevel.enabled }}no-{{ end }}kv-level
    {{- if $side.kvLevel.enabled }}
    - --kv-level-interval={{ $side.kvLevel.minIntervalSeconds }}
    {{- end }}
    {{- if $side.readinessGate.enabled }}
    - --readiness-gate
    - --gate-max-wait={{ $side.readinessGate.maxWaitSeconds }}
    - --gate-max-closed={{ $side.readinessGate.maxClosedSeconds }}
    {{- end }}
    - --pre-stop-delay={{ .Values.termination.preStopSeconds }}
    - --drain-timeout={{ .Values.termination.drainSeconds }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: POD_UID
      valueFrom: {fieldRef: {fieldPath: metadata.uid}}
  ports:
    - {name: sidecar, containerPort: {{ $side.port }}, protocol: TCP}
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
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "weir.containerSecurity" . }}
  {{- . | nindent 2 }}
  {{- end }}
  volumeMounts:
    - {name: run, mountPath: /run/weir}
    - {name: api-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    - {name: tmp, mountPath: /tmp, subPath: sidecar}
{{- end -}}
