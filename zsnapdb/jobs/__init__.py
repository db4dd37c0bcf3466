"""The jobs of zsnapdb, in one file each. A job observes the system, makes a plan, and executes that plan."""
