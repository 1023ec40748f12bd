{{- define "twolane.rayParams" -}}
node-manager-port: "6380"
object-manager-port: "6381"
runtime-env-agent-port: "6382"
dashboard-agent-grpc-port: "6383"
dashboard-agent-listen-port: "52365"
metrics-export-port: "8080"
min-worker-port: "10002"
max-worker-port: "10999"
disable-usage-stats: "true"
{{- end }}
{{- define "twolane.rayPorts" -}}
- {name: raylet, containerPort: 6380}
- {name: objects, containerPort: 6381}
- {name: runtime-env, containerPort: 6382}
- {name: node-agent, containerPort: 6383}
- {name: node-http, containerPort: 52365}
- {name: ray-metrics, containerPort: 8080}
{{- end }}
{{- define "twolane.rayEnv" -}}
{{ include "twolane.env" . }}
# Longer than an outage of the control store: a raylet that does not reach it ends itself.
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "600"}
{{- end }}
{{- define "twolane.rayProbes" -}}
startupProbe:
  tcpSocket: {port: raylet}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  tcpSocket: {port: raylet}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
{{- /* Before a pod ends, its agent lets the workers finish: Ray would kill it and them at once. */ -}}
{{- define "twolane.rayDrain" -}}
lifecycle:
  preStop:
    exec:
      command:
        - python
        - -m
        - twolane.deploy
        - drain
        - --state-dir=/var/lib/twolane/.twolane
        - --drain-s={{ .Values.drainSeconds }}
{{- end }}
