// Package consolebench measures the console in the browser of a live group: how much its first screen takes, how soon
// an event reaches open consoles, and what many open consoles cost the agent.
//
// It owns clients that ask what the page asks, a browser that shows it, the samples and the figures made of them. It
// must not know how the agent answers: it is a client of the HTTPS port.
//
// Start reading at Measure, then Samples.Figures.
package consolebench
