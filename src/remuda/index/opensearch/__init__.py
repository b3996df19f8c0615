"""The search index on an OpenSearch or Elasticsearch server: one index for each queue, aliases over the newest build."""
