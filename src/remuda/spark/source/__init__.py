"""The data source: tables of a log as DataFrames."""
