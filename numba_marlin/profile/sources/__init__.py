"""Where figures come from: a GPU, the PTX machine, models, NVML."""
