"""From RabbitMQ's deliveries to consumers, and their answers back."""
