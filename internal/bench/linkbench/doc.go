// Package linkbench measures how true the lab's links are.
package linkbench
