"""The search index on an OpenSearch or Elasticsearch server: an index for each queue, aliases over the newest build."""
