"""Selection of notification targets and events."""
