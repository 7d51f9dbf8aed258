"""The demo as a show: a web server, a worker and a first visitor, started together and stopped together."""
