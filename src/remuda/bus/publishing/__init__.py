"""Publishing: encoding bodies, message options, replies, and messages from other systems."""
