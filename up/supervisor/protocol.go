package supervisor

import "encoding/json"

// LinkFD is the descriptor of the node's process with its end of the socket to the supervisor. Both sides write JSON
// objects: the supervisor a [Hello] and then [Event]s, the node's process [Request]s. The descriptors of the process's
// [Program.Files] follow from FilesFD on, for TaskRun.
const (
	LinkFD  = 3
	FilesFD = LinkFD + 1
)

// Task is what a node's process is started for.
type Task string

// The tasks.
const (
	// TaskRun is to run the node until the event Stop.
	TaskRun Task = "run"
	// TaskCleanup is to remove what the cluster's processes, which have ended, have left.
	TaskCleanup Task = "cleanup"
)

// Hello is what the supervisor sends first.
type Hello struct {
	Task Task `json:"task"`
	// Config is that of the Plan.
	Config json.RawMessage `json:"config"`
	// Restarts is how often the node's process was started before.
	Restarts int `json:"restarts"`
	// Up is whether what the user has started was ready before (KindUp).
	Up bool `json:"up,omitempty"`
	// Running are the programs that run, with the lines that they have written so far.
	Running map[string][]string `json:"running,omitempty"`
}

// Event is what happened to a program, or that the node is to stop.
type Event struct {
	// Stop asks the process to stop the node with its Pods.
	Stop bool `json:"stop,omitempty"`
	// Program is the name of the program that wrote a Line or, if Line is nil, exited. Error is why, empty if it was stopped.
	Program string  `json:"program,omitempty"`
	Line    *string `json:"line,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// Kind is a kind of Request.
type Kind string

// The kinds of requests.
const (
	// KindStart starts Program, KindStop stops the program Name: both are followed by the event of its exit.
	KindStart Kind = "start"
	KindStop  Kind = "stop"
	// KindSeen says that the event of the exit of the program Name has been received: the node's process reports it then.
	KindSeen Kind = "seen"
	// KindStarting, KindReady and KindFailed show the state of the component Name, KindPrint shows Text.
	KindStarting Kind = "starting"
	KindReady    Kind = "ready"
	KindFailed   Kind = "failed"
	KindPrint    Kind = "print"
	// KindStarted says that the node can run Pods: from now on it is started again as often as needed.
	KindStarted Kind = "started"
	// KindUp says that what the user has started is ready: the service manager is notified. Text describes it.
	KindUp Kind = "up"
	// KindDone is the last request of a process that has ended its task: the cluster stops. Text is the error that made it
	// end early, if any.
	KindDone Kind = "done"
)

// Request is what the node's process wants of the supervisor.
type Request struct {
	Kind    Kind     `json:"kind"`
	Name    string   `json:"name,omitempty"`
	Text    string   `json:"text,omitempty"`
	Program *Program `json:"program,omitempty"`
	// Keep, of KindDone, says that the Pods run on for the next start: there is no cleanup.
	Keep bool `json:"keep,omitempty"`
}
