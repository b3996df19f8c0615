"""The search index on an OpenSearch or Elasticsearch server: one index per queue, and aliases for the newest build."""
