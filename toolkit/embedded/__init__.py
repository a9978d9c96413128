"""The one-machine target: a real Slurm whose nodes are network namespaces, an engine environment, a model."""
