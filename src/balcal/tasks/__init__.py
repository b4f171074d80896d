"""Questions to a method: data, network, plan. Each file ends with TASKS."""
