"""Facts: what the devices, links and gradients of this job are like, measured."""
