"""The jobs of zsnapdb, each in its own module. A job observes the system, makes a plan, and executes that plan."""
