"""Who runs next: warps, diverging paths, basic blocks; schedules, deadlocks."""
