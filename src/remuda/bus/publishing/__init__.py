"""Publishing: values as bodies, options of a message, replies, and messages of other systems."""
