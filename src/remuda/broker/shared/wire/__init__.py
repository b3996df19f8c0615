"""What host and guest say to each other, and the sockets they say it over."""
