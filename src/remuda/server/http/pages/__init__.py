"""The dashboard's pages, with their templates and charts."""
