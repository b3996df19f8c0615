"""A Spark session: Java, its options, and how it starts."""
