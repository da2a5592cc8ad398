"""The user's side: start a run, prepare a model, synchronise its gradients, save and resume."""
