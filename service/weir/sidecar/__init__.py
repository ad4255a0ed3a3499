"""The Kubernetes sidecar: the only code here that talks to a cluster."""
