"""What methods are trained on: data set, backbone, plan. Each file ends with TASKS."""
