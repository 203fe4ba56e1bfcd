"""The engine of a Kubernetes cluster: engine.py says how pods are started, request.py what they may ask for."""
