"""What each technique of the engine is worth: one workload, the techniques switched on one after the other."""
