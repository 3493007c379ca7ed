# Sent to the server once; afterwards a request is one line.
# Variables outlive a connection: what was done is not done again.
namespace eval kohakutpu {
    proc begin {id master} {
        variable session $id last 0 answer {} axi [get_hw_axis $master]
        if {[llength $axi] != 1} { error "no JTAG-to-AXI master $master" }
        return 0
    }
    proc resume {id} {
        variable session
        variable last
        if {$id ne $session} { error "session $id is not known here" }
        return "session $id $last"
    }
    # Request `number` of session `id`: done once, and answered as often as it is asked.
    proc ask {id number args} {
        variable session
        variable last
        variable answer
        if {$id ne $session} { error "session $id is not known here" }
        if {$number == $last + 1} {
            set failed [catch {{*}$args} result]
            set last $number
            set answer "$number $failed $result"
        } elseif {$number != $last} {
            error "request $number after $last"
        }
        return $answer
    }
    proc read_beats {args} {
        variable axi
        set words {}
        foreach {address count} $args {
            for {set beat 0} {$beat < $count} {incr beat} {
                create_hw_axi_txn -force kohakutpu_read $axi -type read -len 1 \
                    -address [format %016lX [expr {$address + 8 * $beat}]]
                run_hw_axi -quiet [get_hw_axi_txns kohakutpu_read]
                lappend words [get_property DATA [get_hw_axi_txns kohakutpu_read]]
            }
        }
        return $words
    }
    # Each burst is an address and its words, the first at the lowest address; Vivado takes the last one first.
    proc write_bursts {args} {
        variable axi
        foreach {address words} $args {
            create_hw_axi_txn -force kohakutpu_write $axi -type write -len [llength $words] \
                -address [format %016lX $address] -data [join [lreverse $words] _]
            run_hw_axi -quiet [get_hw_axi_txns kohakutpu_write]
        }
    }
}
