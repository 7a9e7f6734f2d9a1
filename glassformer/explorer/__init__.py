"""The explorer's page, built from web/, and one trace written into a page of its own."""
