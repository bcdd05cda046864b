// Package dashboard shows locks and jobs to people with a browser, and lets them act: a server-rendered page for each
// question, the same as JSON for programs, and the lokt command line that answers it.
//
// It reads services like any client. Pages work without JavaScript; with it they follow what happens.
package dashboard
