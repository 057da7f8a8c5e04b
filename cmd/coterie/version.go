package main

// version is set by the build.
var version = "development"
