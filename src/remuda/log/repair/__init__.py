"""What a log is found to be: opened, checked, rebuilt, scrubbed and copied."""
