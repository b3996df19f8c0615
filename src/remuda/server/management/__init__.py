"""The management API of RabbitMQ (S7): what KEDA, Flower, rabbitmqadmin and others ask of a server."""
