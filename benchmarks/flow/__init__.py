"""Work per key: what rules of flow cost, and the same work done by peers."""
