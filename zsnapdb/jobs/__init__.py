"""Use cases, one file each: observe, plan, execute that plan."""
