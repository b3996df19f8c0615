"""What all processes on one RabbitMQ agree about: queues, routers, schedules, ids."""
